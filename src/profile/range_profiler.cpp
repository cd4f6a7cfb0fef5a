// SPDX-License-Identifier: Apache-2.0
#include "profile/range_profiler.hpp"

#include <cupti_profiler_host.h>
#include <cupti_profiler_target.h>
#include <cupti_range_profiler.h>
#include <cupti_target.h>
#include <aisp/check.hpp>
#include <aisp/driver_function.hpp>

#include <algorithm>
#include <optional>

#include "profile/cupti.hpp"
#include "profile/tools.hpp"

namespace aisp::profile {
namespace {

constexpr std::size_t most_passes = 200;  // what is still not complete then never will be

struct RangeFunctions {
  AISP_CUPTI(initialize, cuptiProfilerInitialize);
  AISP_CUPTI(chip_name, cuptiDeviceGetChipName);
  AISP_CUPTI(counter_availability, cuptiProfilerGetCounterAvailability);
  AISP_CUPTI(host_initialize, cuptiProfilerHostInitialize);
  AISP_CUPTI(host_deinitialize, cuptiProfilerHostDeinitialize);
  AISP_CUPTI(add_metrics, cuptiProfilerHostConfigAddMetrics);
  AISP_CUPTI(config_size, cuptiProfilerHostGetConfigImageSize);
  AISP_CUPTI(config_image, cuptiProfilerHostGetConfigImage);
  AISP_CUPTI(number_of_passes, cuptiProfilerHostGetNumOfPasses);
  AISP_CUPTI(evaluate, cuptiProfilerHostEvaluateToGpuValues);
  AISP_CUPTI(enable, cuptiRangeProfilerEnable);
  AISP_CUPTI(disable, cuptiRangeProfilerDisable);
  AISP_CUPTI(data_size, cuptiRangeProfilerGetCounterDataSize);
  AISP_CUPTI(initialize_data, cuptiRangeProfilerCounterDataImageInitialize);
  AISP_CUPTI(set_config, cuptiRangeProfilerSetConfig);
  AISP_CUPTI(start, cuptiRangeProfilerStart);
  AISP_CUPTI(stop, cuptiRangeProfilerStop);
  AISP_CUPTI(push, cuptiRangeProfilerPushRange);
  AISP_CUPTI(pop, cuptiRangeProfilerPopRange);
  AISP_CUPTI(decode, cuptiRangeProfilerDecodeData);
};

const RangeFunctions& range_functions() {
  static const RangeFunctions functions;
  return functions;
}

// An empty parameter block of the size that this CUPTI knows.
template <class Params>
Params sized(std::size_t bytes) {
  Params params{};
  params.structSize = bytes;
  return params;
}
#define AISP_PARAMS(type) sized<type>(type##_STRUCT_SIZE)

void must(CUptiResult status, const char* what) {
  if (status == CUPTI_SUCCESS) return;
  if (status == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES) throw CountersRefused{};
  throw Unsupported{"CUPTI cannot read counters here (error " + std::to_string(static_cast<int>(status)) + " when it was to " +
                    what + ")"};
}

CUcontext context_of(int gpu) {
  check(cudaSetDevice(gpu));
  check(cudaFree(nullptr));
  CUcontext context = nullptr;
  if (auto* const current = driver_function<CUresult(CUcontext*)>("cuCtxGetCurrent", 12000)) current(&context);
  if (context == nullptr) throw Unsupported{"the driver tells no CUDA context"};
  return context;
}

std::vector<std::uint8_t> availability_of(CUcontext context) {
  auto params = AISP_PARAMS(CUpti_Profiler_GetCounterAvailability_Params);
  params.ctx = context;
  must(range_functions().counter_availability(&params), "ask which counters there are");
  std::vector<std::uint8_t> image(params.counterAvailabilityImageSize);
  params.pCounterAvailabilityImage = image.data();
  must(range_functions().counter_availability(&params), "ask which counters there are");
  return image;
}

std::string chip_of(int gpu) {
  auto params = AISP_PARAMS(CUpti_Device_GetChipName_Params);
  params.deviceIndex = static_cast<std::size_t>(gpu);
  must(range_functions().chip_name(&params), "ask for the chip's name");
  return params.pChipName;
}

std::size_t passes_of(std::vector<std::uint8_t> configuration) {
  auto params = AISP_PARAMS(CUpti_Profiler_Host_GetNumOfPasses_Params);
  params.configImageSize = configuration.size();
  params.pConfigImage = configuration.data();
  must(range_functions().number_of_passes(&params), "count passes");
  return params.numOfPasses;
}

std::vector<const char*> pointers(const std::vector<std::string>& names) {
  std::vector<const char*> result;
  for (const std::string& name : names) result.push_back(name.c_str());
  return result;
}

}  // namespace

// Knows which metrics there are and how counters become values. It has a name of its own because RangeProfiler::State has one.
class MetricsHost {
 public:
  MetricsHost(std::string chip, const std::vector<std::uint8_t>& availability) : chip_{std::move(chip)} {
    auto params = AISP_PARAMS(CUpti_Profiler_Host_Initialize_Params);
    params.profilerType = CUPTI_PROFILER_TYPE_RANGE_PROFILER;
    params.pChipName = chip_.c_str();
    params.pCounterAvailabilityImage = availability.empty() ? nullptr : availability.data();
    must(range_functions().host_initialize(&params), "look up metrics");
    object_ = params.pHostObject;
  }
  ~MetricsHost() {
    auto params = AISP_PARAMS(CUpti_Profiler_Host_Deinitialize_Params);
    params.pHostObject = object_;
    range_functions().host_deinitialize(&params);
  }
  MetricsHost(const MetricsHost&) = delete;
  MetricsHost& operator=(const MetricsHost&) = delete;

  CUptiResult add(std::vector<const char*> names) const {
    auto params = AISP_PARAMS(CUpti_Profiler_Host_ConfigAddMetrics_Params);
    params.pHostObject = object_;
    params.ppMetricNames = names.data();
    params.numMetrics = names.size();
    return range_functions().add_metrics(&params);
  }
  std::vector<std::uint8_t> configuration() const {
    auto size = AISP_PARAMS(CUpti_Profiler_Host_GetConfigImageSize_Params);
    size.pHostObject = object_;
    must(range_functions().config_size(&size), "schedule counters");
    std::vector<std::uint8_t> image(size.configImageSize);
    auto params = AISP_PARAMS(CUpti_Profiler_Host_GetConfigImage_Params);
    params.pHostObject = object_;
    params.configImageSize = image.size();
    params.pConfigImage = image.data();
    must(range_functions().config_image(&params), "schedule counters");
    return image;
  }
  std::vector<double> values(const std::vector<std::uint8_t>& data, std::size_t range, std::vector<const char*> names) const {
    std::vector<double> values(names.size());
    auto params = AISP_PARAMS(CUpti_Profiler_Host_EvaluateToGpuValues_Params);
    params.pHostObject = object_;
    params.pCounterDataImage = data.data();
    params.counterDataImageSize = data.size();
    params.rangeIndex = range;
    params.ppMetricNames = names.data();
    params.numMetrics = names.size();
    params.pMetricValues = values.data();
    must(range_functions().evaluate(&params), "evaluate counters");
    return values;
  }

 private:
  std::string chip_;
  CUpti_Profiler_Host_Object* object_ = nullptr;
};

std::vector<std::string> known_metrics(const std::string& chip, const std::vector<std::string>& wanted,
                                       const std::vector<std::uint8_t>& availability) {
  std::vector<std::string> known;
  std::optional<MetricsHost> trial;
  for (const std::string& name : wanted) {
    if (!trial) trial.emplace(chip, availability);
    if (trial->add({name.c_str()}) == CUPTI_SUCCESS) known.push_back(name);
    // One that refused a name refuses all that follow.
    else trial.reset();
  }
  return known;
}

struct RangeProfiler::State {
  explicit State(int gpu_ordinal) : gpu{gpu_ordinal} {}
  ~State() {
    if (profiler == nullptr) return;
    auto params = AISP_PARAMS(CUpti_RangeProfiler_Disable_Params);
    params.pRangeProfilerObject = profiler;
    range_functions().disable(&params);
  }

  std::vector<std::uint8_t> empty_data(std::size_t ranges) {
    std::vector<const char*> names = pointers(metrics);
    auto size = AISP_PARAMS(CUpti_RangeProfiler_GetCounterDataSize_Params);
    size.pRangeProfilerObject = profiler;
    size.pMetricNames = names.data();
    size.numMetrics = names.size();
    size.maxNumOfRanges = ranges;
    size.maxNumRangeTreeNodes = static_cast<std::uint32_t>(ranges);
    must(range_functions().data_size(&size), "make room for counters");
    std::vector<std::uint8_t> data(size.counterDataSize);
    auto params = AISP_PARAMS(CUpti_RangeProfiler_CounterDataImage_Initialize_Params);
    params.pRangeProfilerObject = profiler;
    params.counterDataSize = data.size();
    params.pCounterData = data.data();
    must(range_functions().initialize_data(&params), "make room for counters");
    return data;
  }

  void configure(std::vector<std::uint8_t>& data, std::size_t ranges) {
    auto params = AISP_PARAMS(CUpti_RangeProfiler_SetConfig_Params);
    params.pRangeProfilerObject = profiler;
    params.configSize = configuration.size();
    params.pConfig = configuration.data();
    params.counterDataImageSize = data.size();
    params.pCounterDataImage = data.data();
    params.range = CUPTI_UserRange;
    params.replayMode = CUPTI_UserReplay;
    params.maxRangesPerPass = ranges;
    params.numNestingLevels = 1;
    params.minNestingLevel = 1;
    params.targetNestingLevel = 1;
    must(range_functions().set_config(&params), "set the counters up");
  }

  // True after the last pass.
  bool run_pass(const std::function<void()>& before, const std::vector<CountedRange>& ranges) {
    auto start = AISP_PARAMS(CUpti_RangeProfiler_Start_Params);
    start.pRangeProfilerObject = profiler;
    must(range_functions().start(&start), "start a pass");
    before();
    for (const CountedRange& range : ranges) {
      auto push = AISP_PARAMS(CUpti_RangeProfiler_PushRange_Params);
      push.pRangeProfilerObject = profiler;
      push.pRangeName = range.name.c_str();
      must(range_functions().push(&push), "begin a range");
      range.work();
      auto pop = AISP_PARAMS(CUpti_RangeProfiler_PopRange_Params);
      pop.pRangeProfilerObject = profiler;
      must(range_functions().pop(&pop), "end a range");
    }
    auto stop = AISP_PARAMS(CUpti_RangeProfiler_Stop_Params);
    stop.pRangeProfilerObject = profiler;
    must(range_functions().stop(&stop), "stop a pass");
    return stop.isAllPassSubmitted != 0;
  }

  int gpu;
  std::vector<std::uint8_t> availability;
  std::optional<MetricsHost> host;
  std::vector<std::string> metrics;
  std::vector<std::uint8_t> configuration;
  CUpti_RangeProfiler_Object* profiler = nullptr;
};

RangeProfiler::RangeProfiler(int gpu, const std::vector<std::string>& wanted) : state_{std::make_unique<State>(gpu)} {
  auto initialize = AISP_PARAMS(CUpti_Profiler_Initialize_Params);
  must(range_functions().initialize(&initialize), "start its profiler");
  const CUcontext context = context_of(gpu);
  const std::string chip = chip_of(gpu);
  state_->availability = availability_of(context);
  const std::vector<std::uint8_t>& availability = state_->availability;
  state_->metrics = known_metrics(chip, wanted, availability);
  if (state_->metrics.empty()) throw Unsupported{"CUPTI knows none of the metrics on " + chip};
  state_->host.emplace(chip, availability);
  must(state_->host->add(pointers(state_->metrics)), "schedule counters");
  state_->configuration = state_->host->configuration();
  auto enable = AISP_PARAMS(CUpti_RangeProfiler_Enable_Params);
  enable.ctx = context;
  must(range_functions().enable(&enable), "reserve the counters");
  state_->profiler = enable.pRangeProfilerObject;
}

RangeProfiler::~RangeProfiler() = default;

std::size_t RangeProfiler::passes() const { return passes_of(state_->configuration); }

std::vector<MetricValues> RangeProfiler::collect(const std::function<void()>& before, const std::vector<CountedRange>& ranges) {
  std::vector<std::uint8_t> data = state_->empty_data(ranges.size());
  state_->configure(data, ranges.size());
  std::size_t pass = 0;
  while (!state_->run_pass(before, ranges))
    if (++pass == most_passes) throw Unsupported{"CUPTI did not come to an end with its passes"};
  auto decode = AISP_PARAMS(CUpti_RangeProfiler_DecodeData_Params);
  decode.pRangeProfilerObject = state_->profiler;
  must(range_functions().decode(&decode), "decode counters");
  std::vector<MetricValues> result(ranges.size());
  for (std::size_t range = 0; range < ranges.size(); ++range) {
    const std::vector<double> values = state_->host->values(data, range, pointers(state_->metrics));
    for (std::size_t i = 0; i < values.size(); ++i) result[range].emplace(state_->metrics[i], values[i]);
  }
  return result;
}

}  // namespace aisp::profile
