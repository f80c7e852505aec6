"""Weights of openfold's and ESMFold's modules in our layers.

Both name them alike. `state` is a mapping from names to arrays, `name` a module within it.
"""

import numpy as np


def _norm(layer, state, name):
    layer.gamma.assign(state[f"{name}.weight"])
    layer.beta.assign(state[f"{name}.bias"])


def _dense(layer, state, *names):
    """A kernel (in, out) of PyTorch's (out, in); of several modules, side by side."""
    layer.kernel.assign(np.concatenate([state[f"{name}.weight"].T for name in names], axis=-1))
    if layer.bias is not None:
        layer.bias.assign(np.concatenate([state[f"{name}.bias"] for name in names]))


def _attention(layer, state, name):
    _dense(layer.query_key_value, state, *(f"{name}.linear_{x}" for x in "qkv"))
    _dense(layer.gate_projection, state, f"{name}.linear_g")
    _dense(layer.output_projection, state, f"{name}.linear_o")


def triangle_attention(layer, state, name):
    _norm(layer.norm, state, f"{name}.layer_norm")
    _dense(layer.pair_bias, state, f"{name}.linear")
    _attention(layer.attention, state, f"{name}.mha")


def triangle_multiplication(layer, state, name):
    _norm(layer.norm, state, f"{name}.layer_norm_in")
    _norm(layer.output_norm, state, f"{name}.layer_norm_out")
    _dense(layer.edges, state, f"{name}.linear_a_p", f"{name}.linear_b_p")
    _dense(layer.edge_gates, state, f"{name}.linear_a_g", f"{name}.linear_b_g")
    _dense(layer.gate_projection, state, f"{name}.linear_g")
    _dense(layer.output_projection, state, f"{name}.linear_z")


def outer_product_mean(layer, state, name):
    _norm(layer.norm, state, f"{name}.layer_norm")
    _dense(layer.projections, state, f"{name}.linear_1", f"{name}.linear_2")
    _dense(layer.output_projection, state, f"{name}.linear_out")


def _transition(norm, layer, state, name):
    _norm(norm, state, f"{name}.layer_norm")
    _dense(layer.inner, state, f"{name}.linear_1")
    _dense(layer.outer, state, f"{name}.linear_2")


def _global_attention(layer, state, name):
    _norm(layer.norm, state, f"{name}.layer_norm_m")
    inner = f"{name}.global_attention"
    _dense(layer.query, state, f"{inner}.linear_q")
    _dense(layer.key_value, state, f"{inner}.linear_k", f"{inner}.linear_v")
    _dense(layer.gate_projection, state, f"{inner}.linear_g")
    _dense(layer.output_projection, state, f"{inner}.linear_o")


def msa_block(layer, state):
    rows = layer.row_attention
    _norm(rows.norm, state, "msa_att_row.layer_norm_m")
    _norm(rows.pair_norm, state, "msa_att_row.layer_norm_z")
    _dense(rows.pair_bias, state, "msa_att_row.linear_z")
    _attention(rows.attention, state, "msa_att_row.mha")
    if layer.global_attention:
        _global_attention(layer.column_attention, state, "msa_att_col")
    else:
        columns = layer.column_attention
        _norm(columns.norm, state, "msa_att_col._msa_att.layer_norm_m")
        _attention(columns.attention, state, "msa_att_col._msa_att.mha")
    _transition(layer.transition_norm, layer.transition, state, "msa_transition")


def pair_block(layer, state):
    outer_product_mean(layer.outer_product, state, "outer_product_mean")
    triangle_multiplication(layer.outgoing, state, "pair_stack.tri_mul_out")
    triangle_multiplication(layer.incoming, state, "pair_stack.tri_mul_in")
    triangle_attention(layer.starting, state, "pair_stack.tri_att_start")
    triangle_attention(layer.ending, state, "pair_stack.tri_att_end")
    _transition(layer.transition_norm, layer.transition, state, "pair_stack.pair_transition")
