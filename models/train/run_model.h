// The model of a run, made from its setup.
#pragma once

#include <string>

#include "models/gpt/gpt.h"
#include "models/train/run_setup.h"

namespace lockstep::models {

// Allocates the weights in the dtype of train.precision: for bf16 and fp16 they have 16 bits;
// gradients are in train.grad_dtype. Without weights to load, initialises all of them; else only
// adapters, which those may lack. The meta device is for planning.
void MaterializeFor(const RunSetup& setup, Device device, Module& model);

// What decides the bits of a run besides its configuration, as far as programs of this version
// differ: cpu::DescribeProducts, or a GPU's name.
std::string ArithmeticOf(const RunSetup& setup);

// Gives a model of setup.model its weights: initialised, from init_from, or from the checkpoint. Of
// a model that is sharded already, a rank takes memory only for its parts. Of an elastic run that
// goes on from StateCopies, only memory: Load gives it its weights.
void FillModel(const RunSetup& setup, Gpt& model);

}  // namespace lockstep::models
