"""A small model of each family, by the name of its builder."""

from keras_tfm import models

SMALL = {"dim": 10, "num_layers": 2, "num_heads": 2, "intermediate_dim": 13, "dropout": 0.0}
NARROW = {name: x for name, x in SMALL.items() if name != "dropout"}
VOCABULARY, LENGTH = 17, 7
BUILDERS = {
    "bert": lambda **x: models.bert(VOCABULARY, **SMALL, max_length=LENGTH, **x),
    "roberta": lambda **x: models.roberta(VOCABULARY, **SMALL, max_length=9, pad_id=0, **x),
    "distilbert": lambda **x: models.distilbert(VOCABULARY, **SMALL, max_length=LENGTH, **x),
    "electra": lambda **x: models.electra(
        VOCABULARY, **SMALL, embedding_dim=6, max_length=LENGTH, **x
    ),
    "albert": lambda **x: models.albert(
        VOCABULARY, **SMALL, embedding_dim=6, max_length=LENGTH, **x
    ),
    "deberta": lambda **x: models.deberta(
        VOCABULARY, **SMALL, embedding_dim=6, max_length=LENGTH, num_buckets=4, kernel_size=3, **x
    ),
    "llama": lambda **x: models.llama(
        VOCABULARY, **NARROW, head_dim=6, num_key_value_heads=1, max_length=LENGTH, **x
    ),
    "olmo2": lambda **x: models.olmo2(
        VOCABULARY, **{**NARROW, "dim": 2 * NARROW["dim"]}, num_key_value_heads=1,
        max_length=LENGTH, **x
    ),
    "gemma": lambda **x: models.gemma(
        VOCABULARY, **NARROW, head_dim=6, num_key_value_heads=1, post_norm=True,
        query_key_norm=True, windows=[3, None], local_rope_theta=50.0, final_logit_soft_cap=5.0,
        query_pre_attention_scalar=3, max_length=LENGTH, **x
    ),
    "gpt": lambda **x: models.gpt(VOCABULARY, **SMALL, max_length=LENGTH, **x),
    "bart": lambda **x: models.bart(
        VOCABULARY, **SMALL, max_length=LENGTH, pad_id=0, end_id=9, **x
    ),
    "mbart": lambda **x: models.mbart(
        VOCABULARY, **SMALL, max_length=LENGTH, pad_id=0, end_id=9, **x
    ),
    "pegasus": lambda **x: models.pegasus(VOCABULARY, **SMALL, **x),
    "marian": lambda **x: models.marian(VOCABULARY, **SMALL, pad_id=0, **x),
    "t5": lambda **x: models.t5(VOCABULARY, **SMALL, gated=True, num_buckets=8, **x),
    "transformer": lambda **x: models.transformer(VOCABULARY, 11, **SMALL, **x),
    "whisper": lambda **x: models.whisper(
        VOCABULARY, **SMALL, num_mels=6, max_source_length=5, max_length=LENGTH, pad_id=0, **x
    ),
    "whisper, features": lambda **x: models.whisper(
        VOCABULARY, **SMALL, num_mels=6, max_source_length=5, max_length=LENGTH, pad_id=0,
        audio=False, **x
    ),
    "vit": lambda **x: models.vit((8, 12), 4, **SMALL, **x),
    "vit, dinov2": lambda **x: models.vit(
        12, (4, 6), **{**SMALL, "intermediate_dim": 16}, num_registers=2, layer_scale=0.7,
        gated=True, activation="silu", antialias=True, **x
    ),
    "resnet": lambda **x: models.resnet((9, 12), 6, (40, 48), (1, 2), **x),
    "detr": lambda **x: models.detr(
        (9, 12), 3, 5, **{**SMALL, "dim": 4 * SMALL["dim"]}, frozen_batch_norm=False,
        auxiliary_outputs=True,
        backbone={"stem_dim": 6, "dims": (8, 7), "depths": (1, 1), "bottleneck": False}, **x
    ),
    "clip": lambda **x: models.clip(
        (12, 12), 4, VOCABULARY, LENGTH, 9, 6, SMALL, {**SMALL, "dim": 2 * SMALL["dim"]}, **x
    ),
    "clip_image": lambda **x: models.clip_image(12, 6, **SMALL, projection_dim=5, **x),
    "clip_text": lambda **x: models.clip_text(
        VOCABULARY, **SMALL, projection_dim=5, max_length=LENGTH, **{"end_id": None, **x}
    ),
    "dalle": lambda **x: models.dalle(
        11, 4, text_length=2, grid=(2, 3), kernel_size=3,
        masks=["row", "convolution"], **SMALL, **x
    ),
    "dvae": lambda **x: models.dvae((8, 12), 7, 24, 3, 1, 5, **x),
    "dvae_encoder": lambda **x: models.dvae_encoder((16, 24), 7, 24, 4, 1, **x),
    "dvae_decoder": lambda **x: models.dvae_decoder((8, 12), 7, 10, 3, 1, 5, **x),
    "image_gpt": lambda **x: models.image_gpt(VOCABULARY - 1, **SMALL, max_length=LENGTH, **x),
    "lxmert": lambda **x: models.lxmert(
        VOCABULARY, **{**SMALL, "num_layers": 1}, num_visual_layers=1, num_cross_layers=1,
        max_length=LENGTH, region_dim=11, num_regions=4, region_mask=True, **x
    ),
    "vilbert": lambda **x: models.vilbert(
        VOCABULARY, **{**SMALL, "num_layers": 1}, visual_dim=2 * SMALL["dim"],
        num_visual_layers=1, num_visual_heads=4, visual_intermediate_dim=14, co_attention_dim=12,
        num_co_attention_heads=3, text_schedule=(1,), visual_schedule=(0,), max_length=LENGTH,
        region_dim=11, num_regions=4, region_mask=True, **x
    ),
    "evoformer": lambda **x: models.evoformer(
        VOCABULARY, SMALL["dim"], pair_dim=2 * SMALL["dim"], num_layers=1, num_heads=2,
        num_pair_heads=4, outer_dim=3, transition_factor=2, dropout=0.0, pair_dropout=0.0,
        single_dim=7, max_distance=3, num_recycles=1, num_extra_layers=1, extra_dim=SMALL["dim"],
        num_extra_heads=2, num_sequences=3, num_residues=5, num_extra_sequences=2, **x
    ),
    "evoformer, small": lambda **x: models.evoformer(
        VOCABULARY, SMALL["dim"], pair_dim=2 * SMALL["dim"], num_layers=1, num_heads=2,
        num_pair_heads=4, outer_dim=3, dropout=0.0, pair_dropout=0.0, single_dim=7,
        feature_dim=2, residue_index=True, num_sequences=3, num_residues=5, **x
    ),
}  # fmt: skip
