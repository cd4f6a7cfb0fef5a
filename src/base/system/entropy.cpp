// SPDX-License-Identifier: Apache-2.0
#include "base/system/entropy.hpp"

#include <sys/random.h>

#include "base/error.hpp"

namespace aisp::base {

std::uint64_t entropy() {
  std::uint64_t bits = 0;
  // So few bytes come at once or, where the system call is forbidden, not at all.
  if (::getrandom(&bits, sizeof bits, 0) != sizeof bits)
    throw Error{Exit::unfit, "the system gives no random numbers (getrandom)"};
  return bits;
}

}  // namespace aisp::base
