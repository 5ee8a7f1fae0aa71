"""Everything below needs a CUDA GPU; without one each test says what was missing."""

from __future__ import annotations

import pytest

from tilewright.errors import DeviceError
from tilewright.jit import device
from tilewright.plan.store import ENVIRONMENT_VARIABLE


@pytest.fixture(autouse=True, scope="session")
def own_tables(tmp_path_factory):
    """What other test processes tune meanwhile changes plans, and makes this one forget its warm calls."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ENVIRONMENT_VARIABLE, str(tmp_path_factory.mktemp("tables")))
        yield


@pytest.fixture(autouse=True, scope="session")
def gpu():
    """The first GPU."""
    try:
        if device.gpu_count() == 0:
            device.driver()
            pytest.skip("the CUDA driver reports no GPU")
        return device.device(0).gpu
    except DeviceError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def torch():
    return pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture(scope="session")
def cupy():
    return pytest.importorskip("cupy", reason="CuPy is not installed")


@pytest.fixture(scope="session")
def jax():
    return pytest.importorskip("jax", reason="JAX is not installed")
