#pragma once
#include "on_host/fp4.h"
