// What a training program needs of Lockstep.
#pragma once

#include "core/autograd/engine.h"
#include "core/module.h"
#include "core/philox.h"
#include "core/step_state.h"
#include "core/tensor.h"
#include "kernels/activation/activation.h"
#include "kernels/softmax_cross_entropy/softmax_cross_entropy.h"
#include "lockstep/version.h"
#include "nn/linear.h"
#include "optim/adamw.h"
