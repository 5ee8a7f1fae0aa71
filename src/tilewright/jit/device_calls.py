"""The few driver calls that calls need besides launching: who owns an address, and one stream waiting for another."""

from __future__ import annotations

from .device import bound_to, check, device, driver


def ordinal_of(address: int) -> int:
    """The GPU that a device address belongs to. Raises DeviceError for what is not a device address."""
    api = driver()
    which = api.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    status, *found = api.cuPointerGetAttribute(which, address)
    if status:
        check((status,), f"finding the GPU of address {address:#x}")
    return int(found[0])


def enter_context(ordinal: int) -> None:
    """Make the GPU's primary context current on a thread that has none, as the CUDA runtime does on first use."""
    api = driver()
    if not int(check(api.cuCtxGetCurrent(), "reading the current context")):
        check(api.cuCtxSetCurrent(device(ordinal).context), "entering the device's context")


def make_wait(waiting: int, awaited: int, ordinal: int) -> None:
    """Make what is launched on stream `waiting` from now on start after all that is on stream `awaited` by now."""
    api = driver()
    with bound_to(ordinal):
        flag = int(api.CUevent_flags.CU_EVENT_DISABLE_TIMING)
        event = check(api.cuEventCreate(flag), "creating an event")
        try:
            check(api.cuEventRecord(event, awaited), "recording an event")
            check(api.cuStreamWaitEvent(waiting, event, 0), "making a stream wait")
        finally:
            check(api.cuEventDestroy(event), "freeing an event")  # freed by the driver once it has happened


def is_capturing(stream: int, ordinal: int) -> bool:
    """Return whether what is launched on the stream goes into a CUDA graph that is being captured."""
    api = driver()
    with bound_to(ordinal):
        state = check(api.cuStreamIsCapturing(stream), "asking whether a capture is running")
    return bool(state != api.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)


def synchronize(stream: int) -> None:
    """Wait on the host for a stream of the current context; a fault of a kernel on it is raised here as DeviceError."""
    check(driver().cuStreamSynchronize(stream), "waiting for the GPU")
