"""The end of a command: every way out of it as an exit status and, where something is wrong, a line that says what."""

from __future__ import annotations

import contextlib
import errno
import io
import sys

import typer

from ..errors import TilewrightError
from .app import app
from .console import discard, note, plain_warnings

CLOSED = 141
"""What a shell gives for a program that wrote to a closed pipe."""


def run() -> int:
    """Run the command of sys.argv; its exit status. KeyboardInterrupt passes."""
    plain_warnings()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names may hold what the terminal's encoding has not
    try:
        status = app(standalone_mode=False)
        if status == 130:  # typer's own answer to Ctrl-C
            note("stopped")
        if sys.stdout is not None:  # it may have been closed
            sys.stdout.flush()
    except TilewrightError as error:
        note(f"{type(error).__name__}: {error}")
        status = 2
    except typer.Abort:  # also typer's
        note("stopped")
        status = 130
    except BrokenPipeError:
        status = _nobody_reads()
    except SystemExit as left:  # typer's after --install-completion, or its and rich's answer to a closed pipe
        status = 0 if left.code in (0, None) else _nobody_reads()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            note(f"{error.strerror}: {error.filename}. Choose a shorter one.")
        elif error.errno == errno.ENOENT and error.filename is None:  # what os.getcwd() says
            note("the working folder is not there any more. Change to another.")
        elif sys.stdout is not None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG):
            discard(sys.stdout)
            note(f"the output could not be written ({error}). Make room, or write it elsewhere.")
        else:
            raise
        status = 2
    except MemoryError as error:
        note(f"MemoryError: this machine has not enough memory ({error}). Try smaller sizes.")
        status = 2
    except Exception as error:
        show = getattr(error, "show", None)  # typer's own usage errors know how to show themselves
        if show is None:
            raise
        with contextlib.suppress(OSError):
            show()
        status = getattr(error, "exit_code", 2)
    return status if isinstance(status, int) else 0


def _nobody_reads() -> int:
    discard(sys.stdout)
    return CLOSED
