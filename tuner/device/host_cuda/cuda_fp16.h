#pragma once
#include "on_host/narrow_floats.h"
