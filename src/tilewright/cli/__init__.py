"""The command line. Each command reads its options, calls the library, prints; heavy modules load inside commands.

Exit status: 0 fine; 1 a wrong result, a fault of a kernel, or a table out of date; 2 what was asked cannot be done;
130 Ctrl-C.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys

import typer

from ..errors import TilewrightError
from .app import app
from .console import note, plain_warnings

__all__ = ["app", "main"]


def main() -> None:
    """Entry of the command; leaves by SystemExit."""
    plain_warnings()
    try:
        status = app(standalone_mode=False)
        if status == 130:  # typer's own answer to Ctrl-C
            note("stopped")
        if sys.stdout is not None:  # it may have been closed
            sys.stdout.flush()
    except TilewrightError as error:
        note(f"{type(error).__name__}: {error}")
        status = 2
    except (typer.Abort, KeyboardInterrupt):
        note("stopped")
        status = 130
    except BrokenPipeError:
        # whoever read our output has gone; what is left in the buffer must not raise once more at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 141
    except OSError as error:
        if sys.stdout is None or error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG):
            raise
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        note(f"the output could not be written ({error}). Make room, or write it elsewhere.")
        status = 2
    except MemoryError as error:
        note(f"MemoryError: this machine has not enough memory ({error}). Try smaller sizes.")
        status = 2
    except Exception as error:
        show = getattr(error, "show", None)  # typer's own usage errors know how to show themselves
        if show is None:
            raise
        show()
        status = getattr(error, "exit_code", 2)
    raise SystemExit(status if isinstance(status, int) else 0)


if __name__ == "__main__":
    main()
