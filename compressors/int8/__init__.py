"""The ``int8`` format: graphs of integer kernels."""
