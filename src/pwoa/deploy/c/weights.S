/* The file weights.bin as a constant in the program: model_weights and model_weights_bytes of model.h. */
#ifdef __APPLE__
#define NAME(name) _##name
.const
#else
#define NAME(name) name
.section .rodata
#endif
.global NAME(model_weights)
.global NAME(model_weights_bytes)
.balign 64
NAME(model_weights):
.incbin "weights.bin"
NAME(end_of_weights):
.balign 8
NAME(model_weights_bytes):
#if __SIZEOF_POINTER__ == 8
.quad NAME(end_of_weights) - NAME(model_weights)
#else
.long NAME(end_of_weights) - NAME(model_weights)
#endif
#ifdef __ELF__
.section .note.GNU-stack,"",%progbits
#endif
