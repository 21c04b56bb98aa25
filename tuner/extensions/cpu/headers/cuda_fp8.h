#pragma once
#include "on_host/fp8.h"
#include "on_host/narrow_limits.h"
