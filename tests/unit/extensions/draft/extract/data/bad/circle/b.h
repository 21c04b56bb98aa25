#define TWO 2.0f
#include "a.h"
