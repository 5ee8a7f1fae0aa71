"""The command line. Each command reads its options, calls the library, prints; heavy modules load inside commands.

Exit status: 0 fine; 1 a wrong result, a fault of a kernel, a problem that could not be tuned, a table out of date, or
what doctor found missing that nothing runs without; 2 what was asked cannot be done; 130 Ctrl-C (0 with --watch, which
ends by it); 141 nobody reads the output any more.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Entry of the command; leaves by SystemExit."""
    try:
        from .leave import run  # inside: Ctrl-C while the command line's packages load is no traceback either

        status = run()
    except KeyboardInterrupt:
        if sys.stderr is not None:
            print("stopped", file=sys.stderr)
        status = 130
    raise SystemExit(status)
