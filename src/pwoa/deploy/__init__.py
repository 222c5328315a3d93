"""Models where they run: packed files, ONNX, int8 and C. Each kind is imported when it is asked for."""
