"""``python -m lab`` lists the benchmarks; with ``NAME ...`` it runs one, with ``all`` it runs all."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import lab

BENCH = "bench_"


def main() -> None:
    found = sorted(
        module.name for module in pkgutil.iter_modules(lab.__path__) if module.name.startswith(BENCH)
    )
    names = [name.removeprefix(BENCH) for name in found]
    wanted = sys.argv[1:]
    if not wanted:
        _list(names)
    elif wanted == ["all"]:
        for name in names:
            _run(name, [])
    elif wanted[0] in names:
        _run(wanted[0], wanted[1:])
    else:
        sys.exit(f"no benchmark called {wanted[0]!r}; there are: {', '.join(names)}")


def _list(names: list[str]) -> None:
    print(
        "Benchmarks (python -m lab NAME --help tells the options; `all` runs each; lab/results keeps runs):\n"
    )
    for name in names:
        text = importlib.import_module(f"lab.{BENCH}{name}").__doc__ or ""
        print(f"  {name:<12} {text.splitlines()[0]}")
    print(
        "\nAll but `memory`, `loopback`, `idle` and `scale` build hosts from network namespaces and need "
        "root; those with a physical limit need iperf3.\n"
        "`collective`, `arrivals` and `roundtrip` also run on hosts in racks (--racks, --uplink), and where "
        "one connection does not get all of a link (--flow-cap).\n"
        "`python -m lab.page` makes docs/benchmarks.md of what they left."
    )


def _run(name: str, arguments: list[str]) -> None:
    sys.argv = [f"lab {name}", *arguments]
    importlib.import_module(f"lab.{BENCH}{name}").main()


if __name__ == "__main__":
    main()
