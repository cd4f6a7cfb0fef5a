// SPDX-License-Identifier: Apache-2.0
#include "base/system/on_threads.hpp"

#include <unistd.h>

#include <exception>
#include <filesystem>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "base/system/clock.hpp"

namespace aisp::base {
namespace {

void await_end(pid_t thread) {
  constexpr double patience_s = 1;  // the kernel needs microseconds; no machine's trouble may hang a run
  const std::filesystem::path entry = "/proc/self/task/" + std::to_string(thread);
  const double until_s = monotonic_s() + patience_s;
  std::error_code ignored;
  while (std::filesystem::exists(entry, ignored) && monotonic_s() < until_s) std::this_thread::yield();
}

}  // namespace

void on_threads(std::size_t count, const std::function<void(std::size_t)>& work) {
  std::exception_ptr failure;
  std::mutex failure_mutex;
  const auto guarded = [&](std::size_t part) {
    try {
      work(part);
    } catch (...) {
      const std::scoped_lock lock{failure_mutex};
      if (!failure) failure = std::current_exception();
    }
  };
  std::vector<pid_t> ids(count);
  std::vector<std::jthread> others;
  for (std::size_t part = 1; part < count; ++part)
    others.emplace_back([&, part] {
      ids[part] = gettid();
      guarded(part);
    });
  if (count > 0) guarded(0);
  for (std::jthread& thread : others) thread.join();
  for (std::size_t part = 1; part < count; ++part) await_end(ids[part]);
  if (failure) std::rethrow_exception(failure);
}

}  // namespace aisp::base
