// SPDX-License-Identifier: Apache-2.0
// Test-only pairs are built like those of the self-test.
#pragma once
#include "../../selftest/shared/doubling.cuh"
