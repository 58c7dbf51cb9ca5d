"""What Python runs at its start, as ``sitecustomize``, in a program that is profiled and in every Python it starts.

A copy of this file stands alone in a folder that leads ``PYTHONPATH``, with the recorder beside it. It leaves the
program as it would be without: its own ``sitecustomize``, if it has one, runs, and the folder is off ``sys.path``.
Nothing here may fail, and nothing is imported that Python has not imported already.
"""

from __future__ import annotations

import sys

MYPY = False  # which a type checker takes to be true: typing is not imported for this
if MYPY:
    from typing import Any

_PACKAGE = "tunedex.tuner.profiling"
_FILES = ("chains", "recorder")


class _TorchWatch:
    """A finder that lets the others find torch, and begins recording once it is imported."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None:
                break
        else:
            sys.meta_path.insert(0, self)  # it may be installed, or found, later
            return None
        if hasattr(spec.loader, "exec_module"):
            spec.loader = _ThenRecord(spec.loader, self)
        return spec

    def begin(self) -> None:
        """Load the recorder, which does the rest. While it is loaded its files have the names that they import one
        another by; what the program itself knows by these names is another matter."""
        import importlib.util

        before = {f"{_PACKAGE}.{name}": sys.modules.get(f"{_PACKAGE}.{name}") for name in _FILES}
        try:
            for name in _FILES:
                spec: Any = importlib.util.spec_from_file_location(f"{_PACKAGE}.{name}", f"{self.folder}/{name}.py")
                module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
        finally:
            for full, known in before.items():
                if known is None:
                    sys.modules.pop(full, None)
                else:
                    sys.modules[full] = known
        module.begin(self.folder)


class _ThenRecord:
    """A loader as it was, followed by the recorder."""

    def __init__(self, loader: Any, watch: _TorchWatch) -> None:
        self.loader, self.watch = loader, watch

    def create_module(self, spec: Any) -> Any:
        return self.loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = module.__loader__ = self.loader
        try:
            self.loader.exec_module(module)
        except BaseException:
            sys.meta_path.insert(0, self.watch)
            raise
        try:
            self.watch.begin()
        except Exception as error:  # noqa: BLE001 - the program goes on without being seen
            sys.stderr.write(f"tuner profile: cannot record: {type(error).__name__}: {error}\n")


def _main() -> None:
    folder = __file__.replace("\\", "/").rpartition("/")[0]
    sys.path[:] = [entry for entry in sys.path if entry != folder]
    sys.path_importer_cache.pop(folder, None)
    sys.meta_path.insert(0, _TorchWatch(folder))
    # The program's own file of this name, which this one stands before. Its errors are for whoever imports this one.
    own = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", own)


if __name__ == "sitecustomize":
    _main()
