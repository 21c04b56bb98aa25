#pragma once
#include "on_host/fp8.h"
