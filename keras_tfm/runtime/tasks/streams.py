"""Generation on the host that yields tokens or texts as soon as they are chosen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from keras_tfm.runtime.decoding import stepped
from keras_tfm.runtime.decoding.drafts import Draft
from keras_tfm.runtime.decoding.sampling import Choose, Sampler
from keras_tfm.runtime.tasks.text import stream_text

if TYPE_CHECKING:
    from keras_tfm.runtime.model import Model


class Streams:
    """The methods of `runtime.Model` that yield tokens and texts."""

    def stream(
        self,
        inputs: Any,
        choose: Choose | Sampler | None = None,
        draft: Draft | None = None,
    ) -> Iterator[np.ndarray]:
        """Yields the tokens (B,), int32, of each step as soon as they are chosen.

        A row that has ended gets the pad id of the stepped input. The file needs a "decode"
        signature, and "encode" if the model has a source.

        Args:
            inputs: as in `generate`, up to the exported batch size. Prompts must have the same
                length.
            choose: `Sampler`, or a function from logits (B, V), float32, to integer tokens (B,),
                where B is the exported batch size; default: the most probable token. The logits are
                a copy that it may keep. It may run signatures of this model other than "decode".
            draft: `PromptLookup()`, or a function of the tokens so far (B, n), a number of tokens,
                and the inputs by name as lists of rows, that returns guesses of the next tokens
                (B, number). A step then reads several tokens, those that `choose` would not have
                chosen are dropped, and the tokens are those without a draft. The file must have
                been exported with a `draft_length`.

        Raises:
            ValueError: as in `generate`; or `choose` or `draft` returned a token outside the
                vocabulary; a draft for a file without a `draft_length`.
            TypeError: as in `generate`; or `choose` did not return integer tokens (B,), or `draft`
                not (B, number).
            RuntimeError: another stream has begun, or "decode" has run, and overwrote the caches.
        """
        return stepped.stream(cast("Model", self)._runner, inputs, choose, draft=draft)

    def stream_by(
        self, prefill: str, inputs: Any, choose: Choose | Sampler | None = None
    ) -> Iterator[np.ndarray]:
        """`stream` that reads prompts with the signature `prefill`, even if another is faster."""
        return stepped.stream(cast("Model", self)._runner, inputs, choose, prefill)

    def stream_text(
        self,
        texts: Any,
        choose: Choose | Sampler | None = None,
        draft: Draft | None = None,
    ) -> Iterator[str]:
        """Yields the generated text piece by piece: `stream` with the tokenizers of the file.

        The pieces, joined, are what `generate_text` returns after the prompt. A piece ends at the
        end of a character: bytes of an incomplete character are held back.

        Args:
            texts: str; or dict with one text for each input.
            choose, draft: as in `stream`.

        Raises:
            TypeError, ValueError, ModuleNotFoundError: as `generate_text`.
        """
        return stream_text(cast("Model", self), texts, choose, draft)
