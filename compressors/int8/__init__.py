"""The ``int8`` and ``int8-dynamic`` formats: graphs of integer kernels."""
