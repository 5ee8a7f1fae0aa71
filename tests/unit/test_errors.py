"""Errors are of one family, of the builtin kinds people catch, and hold what they promise."""

from __future__ import annotations

import pickle

import pytest

from tilewright import errors

KINDS = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, errors.TilewrightError) and value is not errors.TilewrightError
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_is_caught_by_the_base_and_says_its_message(kind):
    with pytest.raises(errors.TilewrightError, match="the words"):
        raise kind("the words")
    assert kind.__doc__


def test_bad_arguments_are_value_errors_and_missing_packages_import_errors():
    assert issubclass(errors.InvalidOperand, ValueError)
    assert issubclass(errors.ConfigRejected, ValueError)
    assert issubclass(errors.MissingDependency, ImportError)


def test_a_compile_error_carries_its_log_through_pickling():
    error = errors.CompileError("f.cu does not compile", "f.cu(3): error")
    assert error.log == "f.cu(3): error"
    assert str(pickle.loads(pickle.dumps(error))) == "f.cu does not compile"


def test_a_misspelt_keyword_of_matmul_is_answered_with_the_nearest():
    import inspect

    import numpy as np

    import tilewright as tw
    from tilewright.gemm.fusion import KEYWORDS

    taken = inspect.signature(tw.matmul).parameters.values()
    assert set(KEYWORDS) == {p.name for p in taken if p.kind is p.KEYWORD_ONLY}
    a = np.ones((4, 4), np.float32)
    with pytest.raises(tw.errors.InvalidEpilogue, match=r"no argument 'aplha'. Did you mean 'alpha'\?"):
        tw.matmul(a, a, aplha=2.0)
    with pytest.raises(tw.errors.InvalidEpilogue, match=r"no argument 'mask'. Operands of your own"):
        tw.matmul(a, a, mask=a)


@pytest.mark.parametrize(
    ("called", "options", "meant"),
    [
        ("attention", {"is_casual": True}, "is_causal"),
        ("attention_varlen", {"is_casual": True}, "is_causal"),
        ("attention_backward", {"determinstic": True}, "deterministic"),
        ("explain_attention", {"is_casual": True}, "is_causal"),
        ("explain_attention_backward", {"is_casual": True}, "is_causal"),
        ("grouped_matmul", {"out_dtyp": "bf16"}, "out_dtype"),
        ("quantize", {"blok": (1, 128)}, "block"),
        ("emulate", {"gird": 4}, "grid"),
        ("emulator", {"gpuu": "H100"}, "gpu"),
        ("explain_grouped_matmul", {"gpuu": "H100"}, "gpu"),
        ("lab.occupancy", {"threads": 32, "registres": 32}, "registers"),
        ("lab.inspect", {"confg": "stages=2"}, "config"),
        ("lab.roofline", {"gpuu": "H100"}, "gpu"),
    ],
)
def test_a_misspelt_keyword_is_a_type_error_that_names_the_nearest(called, options, meant):
    import operator

    import tilewright as tw

    given = [None] * {
        "attention": 3,
        "attention_varlen": 5,
        "attention_backward": 6,
        "explain_attention": 3,
        "explain_attention_backward": 3,
    }.get(called, 2)
    with pytest.raises(TypeError, match=rf"Did you mean '{meant}'\?"):
        operator.attrgetter(called)(tw)(*([] if called.startswith(("lab", "emulat")) else given), **options)


def test_a_keyword_is_not_taken_for_one_that_only_its_letters_hold():
    import tilewright as tw

    with pytest.raises(TypeError, match=r"no argument 'dropout_p'\. It takes .* dropout to torch"):
        tw.attention(None, None, None, dropout_p=0.1)  # "out" is no word of it


def test_public_names_are_there_and_types_of_results_among_them():
    import tilewright as tw

    for name in tw.__all__:
        assert getattr(tw, name) is not None
    assert isinstance(tw.GemmConfig(64, 64), tw.ladder.GemmConfig)
    assert "H200" in tw.gpus.GPUS
    assert "H200" in tw.arch.GPUS


def test_a_value_that_jax_traces_is_named_as_such():
    import numpy as np

    import tilewright as tw

    tracer = type("DynamicJaxprTracer", (), {"__module__": "jax._src.interpreters.partial_eval"})()
    with pytest.raises(tw.errors.InvalidOperand, match=r"a is a value that JAX traces.*inside jax.jit"):
        tw.matmul(tracer, np.ones((2, 2), np.float32))
