// SPDX-License-Identifier: Apache-2.0
// CUPTI's functions, and its records as activities. Private to profile.
#pragma once
#include <cupti.h>

#include <aisp/library.hpp>

#include <vector>

#include "profile/activity.hpp"

namespace aisp::profile {

// A function of CUPTI, found by its name.
// NOLINTNEXTLINE(bugprone-macro-parentheses): both arguments are names.
#define AISP_CUPTI(member, name) decltype(&name) member = SharedLibrary::open(Library::cupti).function<decltype(name)>(#name)

struct Cupti {
  AISP_CUPTI(enable, cuptiActivityEnable);
  AISP_CUPTI(disable, cuptiActivityDisable);
  AISP_CUPTI(flush, cuptiActivityFlushAll);
  AISP_CUPTI(next, cuptiActivityGetNextRecord);
  AISP_CUPTI(register_callbacks, cuptiActivityRegisterCallbacks);
  AISP_CUPTI(subscribe, cuptiSubscribe);
  AISP_CUPTI(unsubscribe, cuptiUnsubscribe);
  AISP_CUPTI(enable_callback, cuptiEnableCallback);
  AISP_CUPTI(timestamp, cuptiGetTimestamp);
  AISP_CUPTI(callback_name, cuptiGetCallbackName);
};

const Cupti& cupti();  // throws Unsupported where it is absent

// Adds what a record says, if it says anything for us.
void keep(const CUpti_Activity* record, std::vector<Activity>& activities);

}  // namespace aisp::profile
