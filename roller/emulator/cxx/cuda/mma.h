#pragma once
#include "../wmma.h"
