#pragma once

// Tensors of old releases hand out their memory under another name.
#if defined(BUILT_FOR_OLD_TORCH)
#define MEMORY_OF(tensor, T) ((tensor).data<T>())
#else
#define MEMORY_OF(tensor, T) ((tensor).data_ptr<T>())
#endif
