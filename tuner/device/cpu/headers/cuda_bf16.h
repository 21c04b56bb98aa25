#pragma once
#include "on_host/narrow_arithmetic.h"
