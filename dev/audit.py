"""Check what is installed: licences, and known vulnerabilities; `make audit` runs it. Both are looked at whatever the
other finds, and the last line says what came of it.

    python dev/audit.py PIP_AUDIT [options of pip-audit, such as --vulnerability-service osv]
"""

from __future__ import annotations

import argparse
import sys

import licences
import vulnerabilities

STATUSES = """exit status:
  0  everything was checked, and nothing found
  1  something was found: a licence that is not allowed, or a known vulnerability
  3  nothing was found, but not everything could be checked: no service answers from here, or not for every package

`make` ends with 2 whatever was not 0; the last line of the output says which it was."""
VERDICTS = {
    0: "audit: everything was checked, and nothing found",
    1: "audit: something was found, see above",
    3: "audit: nothing was found, but NOT EVERYTHING WAS CHECKED, see above",
}


def main(*given: str) -> int:
    """Print what is found and what was not checked; return the exit status."""
    parser = argparse.ArgumentParser(
        "audit.py",
        description="Check the licences of all installed packages, and ask for their known vulnerabilities.",
        epilog=STATUSES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("pip_audit", help="path of the program pip-audit, which asks a service on the network")
    options, more = parser.parse_known_args(given)
    found = {licences.main(), vulnerabilities.main(options.pip_audit, *more)}
    status = next(one for one in (1, 3, 0) if one in found)
    print(VERDICTS[status])
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
