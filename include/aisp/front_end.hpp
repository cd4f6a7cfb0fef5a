// SPDX-License-Identifier: Apache-2.0
// The name of the inline namespace around header code with lambdas. nvcc's front end writes `member` as `(this)->member` before
// the host compiler sees it, which changes the order of a lambda's captures: two functions of one mangled name, of which the
// linker keeps either, would not agree on where a capture lies. A name for each front end keeps them apart.
#pragma once

#ifdef __CUDACC__
#define AISP_FRONT_END by_nvcc
#else
#define AISP_FRONT_END by_host_compiler
#endif
