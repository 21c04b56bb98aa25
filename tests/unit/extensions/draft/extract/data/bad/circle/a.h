#include "b.h"
#define ONE 1.0f
