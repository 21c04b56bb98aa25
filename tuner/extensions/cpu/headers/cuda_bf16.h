#pragma once
#include "on_host/narrow_arithmetic.h"
#include "on_host/narrow_limits.h"
