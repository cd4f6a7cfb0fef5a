// SPDX-License-Identifier: Apache-2.0
#include "peak/obtain.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/json_fields.hpp"
#include "base/system/clock.hpp"
#include "base/system/crash_trace.hpp"
#include "base/system/files.hpp"
#include "base/system/process.hpp"
#include "base/text.hpp"
#include "evidence/json.hpp"
#include "peak/parts.hpp"

namespace aisp::peak {
namespace {

using nlohmann::json;

// A first `aisp run` waits for the quick variant: what is not begun by then is left to `aisp peak`.
double quick_time_s(FigurePart part) {
  constexpr std::array limits_s{9.0, 7.0, 2.0};
  return limits_s.at(static_cast<std::size_t>(part));
}

void write_line(int fd, const json& value) {
  base::write_all(fd, evidence::json_text(value) + '\n');  // it fails where the parent is gone
}

void measure_gpu(const std::vector<std::string>& gpus, FigurePart part, bool quick, const Teller& teller) {
  // Before the first CUDA call of this process.
  setenv("CUDA_VISIBLE_DEVICES", base::join(gpus, ",").c_str(), 1);
  Bench bench{Device::gpu, quick ? 7 : 15, quick ? 0 : 2.0};
  if (part != FigurePart::links) measure_memory(bench, teller);
  if (part != FigurePart::chip) {
    measure_host_link(bench, teller);
    measure_latency(bench, teller);
    measure_peers(bench, teller);
  }
  if (part != FigurePart::links) measure_math(bench, teller);
  // Last: it starts threads of its own, and takes seconds.
  if (part != FigurePart::chip && !quick) measure_collectives(teller);
}

MemoryLevels measure_levels(const std::vector<std::string>& gpus) {
  if (gpus.empty()) return measure_host_levels();
  setenv("CUDA_VISIBLE_DEVICES", gpus.front().c_str(), 1);
  Bench bench{Device::gpu, 5, 0};
  return measure_gpu_levels(bench);
}

void tell_fabric(int result_fd, const std::vector<std::string>& gpus) {
  setenv("CUDA_VISIBLE_DEVICES", base::join(gpus, ",").c_str(), 1);
  const auto tell = [&](const Fabric& so_far, const std::string& next) {
    write_line(result_fd, {{"record", record_json({.fabric = so_far})}, {"next", next}});
  };
  tell(measure_fabric(tell), "");
}

struct Told {
  PeakRecord record;
  std::string next;  // what it was about to do
  bool done = false;
  std::vector<std::string> crash;  // where it died; base::stack_text reads it
};

// Takes lines as far as they are complete; `text` keeps the rest.
void take_lines(std::string_view part, Subject subject, std::string& text, Told& told) {
  text += part;
  std::size_t end = 0;
  while ((end = text.find('\n')) != std::string::npos) {
    const json line = json::parse(text.substr(0, end), nullptr, false);
    text.erase(0, end + 1);
    if (!line.is_object()) continue;
    if (line.contains("figure")) told.record.figures.push_back(line.at("figure").get<Figure>());
    if (line.contains("record")) told.record = read_record(line.at("record"), subject);
    if (line.contains("next")) told.next = line.at("next").get<std::string>();
    if (line.contains("trouble")) told.record.partial = line.at("trouble").get<std::string>();
    if (line.contains("crash")) told.crash = line.at("crash").get<std::vector<std::string>>();
    told.done = told.done || line.contains("done");
  }
}

}  // namespace

void Teller::figure(std::string_view id, const std::function<Figure()>& measure) const {
  if (!only_.empty() && std::ranges::find(only_, id) == only_.end()) return;
  Figure figure;
  try {
    if (base::monotonic_s() > time_up_s_) figure.why_not = "no time for it in the quick variant; aisp peak measures it";
    else figure = measure();
  } catch (const std::exception& error) {
    figure = {.why_not = error.what()};
    if (const auto* cuda = dynamic_cast<const CudaError*>(&error); cuda != nullptr) cudaGetLastError();
  }
  figure.id = id;
  tell_(figure);
}

constexpr base::Words<3> words_of(Subject /*any*/) { return {{"figures", "levels", "fabric"}}; }
constexpr base::Words<3> words_of(FigurePart /*any*/) { return {{"all", "chip", "links"}}; }

AISP_DESCRIBE(ChildRequest, gpus, subject, part, quick, only)

static PeakRecord unreadable(const std::exception& error) {
  return {.partial = std::string{"the process that measures gave an unreadable answer: "} + error.what()};
}

PeakRecord ask(const ChildRequest& request) try {
  Told told;
  std::string& trouble = told.record.partial;
  std::string text;
  const base::ChildOutcome outcome = base::ask({.executable = request.executable,
                                                .command = "__peak",
                                                .input = evidence::json_text(base::json_of(request)),
                                                .limit_s = request.limit_s,
                                                .interrupted = "interrupted; nothing was kept"},
                                               [&](std::string_view part) { take_lines(part, request.subject, text, told); });
  if (!outcome.in_time) {
    trouble = "it was not done within " + base::human_duration(request.limit_s);
    if (!told.next.empty()) trouble += " (" + told.next + ")";
  }
  if (told.done || !trouble.empty()) return told.record;
  trouble = "the process that measures ended early (" + outcome.end_text() + ")";
  if (!told.next.empty()) trouble += ", " + told.next;
  const std::string stack = base::stack_text(told.crash);
  if (!stack.empty()) trouble += ", it crashed in" + stack;
  return told.record;
} catch (const base::Error& error) {
  if (error.status() == base::Exit::interrupted) throw;
  if (error.status() == base::Exit::usage) return unreadable(error);
  return {.partial = error.what()};
} catch (const std::exception& error) {
  return unreadable(error);
}

int child_main(int result_fd) {
  base::trace_crashes(result_fd);
  const std::string text{std::istreambuf_iterator<char>{std::cin}, {}};
  const json message = evidence::parse_json(text, "request");
  ChildRequest request;
  base::JsonReader::read(message, request, "request");
  if (!message.contains("subject")) throw base::Error{base::Exit::usage, "request: it has no subject"};
  const double time_s = request.quick && !request.gpus.empty() ? quick_time_s(request.part) : 1e9;
  const Teller teller{[&](const Figure& figure) {
                        write_line(result_fd, {{"figure", figure}});
                      },
                      base::monotonic_s() + time_s, request.only};
  try {
    if (request.subject == Subject::levels)
      write_line(result_fd, {{"record", record_json({.levels = measure_levels(request.gpus)})}});
    else if (request.subject == Subject::fabric) tell_fabric(result_fd, request.gpus);
    else if (!request.gpus.empty()) measure_gpu(request.gpus, request.part, request.quick, teller);
    else {
      Bench bench{Device::host, request.quick ? 5 : 15, 0};
      measure_host(bench, teller);
    }
    write_line(result_fd, {{"done", true}});
  } catch (const std::exception& error) {
    write_line(result_fd, {{"trouble", error.what()}});
  }
  // After a CUDA error the runtime's own exit handlers may hang; nothing of value is left in this process.
  _exit(static_cast<int>(base::Exit::good));
}

}  // namespace aisp::peak
