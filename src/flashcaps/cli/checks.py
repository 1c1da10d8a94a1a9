from rich.markup import escape

from ..routing.checks import install_command
from .common import Device, say, show_table


def checks(device: Device = "auto") -> None:
    """Check this installation: versions, devices, the active kernels, and each kernel against its reference.

    \b
    flashcaps checks
    flashcaps checks --device cuda
    """
    from ..training import environment as found
    from ..training.distributed import find_device
    from ..training.results import versions

    chosen, extras = find_device(device), found.extras()
    missing = {name: found.EXTRAS[name] for name, here in extras.items() if not here}
    rows = [("versions", ", ".join(f"{name} {v or 'not installed'}" for name, v in versions().items()))]
    rows += [("" if k else "devices", line) for k, line in enumerate(found.devices())]
    rows += [("extras", ", ".join(name for name, here in extras.items() if here) or "none")]
    rows += [("not installed", f"{', '.join(missing)}: {install_command(**missing)}")] * bool(missing)
    show_table((), [(key, escape(line)) for key, line in rows])  # extras are named in brackets
    say(f"\nbackends of layers on {chosen}")
    active = found.active_backends(chosen)
    others = ["; ".join(f"{name}: {why}" for name, why in row.others.items()) for row in active]
    show_table(("algorithm", "backend", "why not another"),
               [(row.algorithm, row.backend, why) for row, why in zip(active, others, strict=True)])
    say("\nlargest difference from the reference, as a share of the largest element")
    compared = found.compare_backends(chosen)
    show_table(("algorithm", "backend", "output", "gradient", ""),
               [(row.algorithm, row.backend, f"{row.output:.1e}", f"{row.gradient:.1e}", "ok" if row.ok else "DIFFERS")
                for row in compared])
    if not all(row.ok for row in compared):
        raise RuntimeError("a kernel differs from its reference; use backend='reference', and report it")
