"""The exported policy graph: from a torch module to ONNX nodes whose weights can be rewritten in place."""
