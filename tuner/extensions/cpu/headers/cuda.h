#pragma once
#include "on_host/asynchronous.h"

using CUtensorMap = cuda_on_host::TensorMap;
