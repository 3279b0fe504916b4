"""GPU kernels over packed weights, each with a plain torch reference.

`ops.py` holds what users call. Sources (`*.cu`) are compiled at first use by NVIDIA's run-time
compiler and kept on disk (`build.py`); `driver.py` launches them.
"""
