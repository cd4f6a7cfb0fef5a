// SPDX-License-Identifier: Apache-2.0
#include "run/child/child.hpp"

#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/system/crash_trace.hpp"
#include "base/system/files.hpp"
#include "evidence/json.hpp"
#include "pair/registry.hpp"
#include "pair/running_variant.hpp"

namespace aisp::run {

const pair::Entry& find_pair(const std::string& target) {
  for (const pair::Entry& entry : pair::registry())
    if (entry.target() == target) return entry;
  for (const pair::SelftestEntry& hidden : pair::selftest_registry())
    if (hidden.entry.target() == target) return hidden.entry;
  throw base::Error{base::Exit::usage, "no pair '" + target + "' in this executable"};
}

int child_main(int result_fd) {
  base::trace_crashes(result_fd);
  const std::string text{std::istreambuf_iterator<char>{std::cin}, {}};
  Request request = nlohmann::json::parse(text).get<Request>();
  request.own_process = true;
  // Orphaned descendants become our children, so that their CPU time stays in our account.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  if (!request.running_variant_page.empty()) pair::share_running_variant(request.running_variant_page);
  // Writing fails if the parent is gone; nothing is left to report to.
  const Reporter reporter{.send = [&](const std::string& line) { base::write_all(result_fd, line + "\n"); },
                          .await_answer =
                              [&] {
                                for (char each = 0; each != '\n';)
                                  if (const ssize_t got = ::read(result_fd, &each, 1); got == 0 || (got < 0 && errno != EINTR))
                                    return;
                              }};
  const evidence::PairResult result = run_pair(find_pair(request.target), request, reporter);
  reporter.send(evidence::json_text(nlohmann::json{{"result", result}}));
  std::cout.flush();
  // After a CUDA error the runtime's own exit handlers may hang; nothing of value is left in this process.
  _exit(static_cast<int>(base::Exit::good));
}

}  // namespace aisp::run
