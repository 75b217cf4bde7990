"""TensorFlow, loaded at its first use: loading it takes longer than a small task needs to be learned without it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tensorflow as tf
else:

    class _Tensorflow:
        """Stands for the module; looks everything up in it."""

        def __getattr__(self, name: str) -> Any:
            import sys

            if "tensorflow" not in sys.modules:
                from quarl.train.quiet import suppress_output

                with suppress_output():  # oneDNN says on the screen that it is on, whatever the level of the log
                    import tensorflow
            import tensorflow

            return getattr(tensorflow, name)

    tf = _Tensorflow()

__all__ = ["tf"]
