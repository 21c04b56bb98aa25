"""Files in which SGLang and vLLM keep the configs of their Triton kernels."""
