/* A loop of your own in C++ around a bundle's model.onnx, with nothing but onnxruntime.

       g++ -std=c++17 -O2 run_bundle.cpp -o run_bundle -I/usr/include/onnxruntime -lonnxruntime
       ./run_bundle bundle/model.onnx < observations.txt

   A line of standard input is an observation (numbers, parts of a Dict one after the other); it is answered by the
   policy's outputs. An empty line begins an episode. Headers: Debian's libonnxruntime-dev, or a release of onnxruntime. */
#include <algorithm>
#include <iostream>
#include <onnxruntime_cxx_api.h>
#include <sstream>
#include <string>
#include <vector>

int main(int, char **arguments) {
    Ort::Env environment(ORT_LOGGING_LEVEL_WARNING);
    Ort::SessionOptions options;
    options.SetIntraOpNumThreads(1);
    options.AddConfigEntry("session.disable_quant_qdq", "1"); // as contract.json says under "model"
    Ort::Session session(environment, arguments[1], options);
    Ort::AllocatorWithDefaultOptions allocator;
    for (const char *key : {"accel.observation", "accel.action"}) // names, units and bounds, as JSON
        std::cerr << session.GetModelMetadata().LookupCustomMetadataMapAllocated(key, allocator).get() << "\n";
    std::vector<std::string> names;
    std::vector<const char *> inputs, outputs;
    std::vector<Ort::Value> values;
    const size_t count = session.GetInputCount(), results = session.GetOutputCount();
    for (size_t i = 0; i < count + results; i++)
        names.emplace_back(i < count ? session.GetInputNameAllocated(i, allocator).get()
                                     : session.GetOutputNameAllocated(i - count, allocator).get());
    for (size_t i = 0; i < count + results; i++) (i < count ? inputs : outputs).push_back(names[i].c_str());
    for (size_t i = 0; i < count; i++) { // one row of floats each; the last inputs are the recurrent state, zero at first
        auto shape = session.GetInputTypeInfo(i).GetTensorTypeAndShapeInfo().GetShape();
        shape[0] = 1;
        values.push_back(Ort::Value::CreateTensor<float>(allocator, shape.data(), shape.size()));
    }
    const size_t observed = count - (results - 1);
    const auto data = [](Ort::Value &value) { return value.GetTensorMutableData<float>(); };
    const auto size = [](const Ort::Value &value) { return value.GetTensorTypeAndShapeInfo().GetElementCount(); };
    bool first = true;
    for (std::string line; std::getline(std::cin, line); first = line.empty()) {
        if (line.empty()) continue;
        std::istringstream numbers(line);
        for (size_t i = 0; i < observed; i++)
            std::for_each(data(values[i]), data(values[i]) + size(values[i]), [&](float &x) { numbers >> x; });
        for (size_t i = observed; i < count && first; i++) std::fill_n(data(values[i]), size(values[i]), 0.0f);
        auto found = session.Run({}, inputs.data(), values.data(), count, outputs.data(), results);
        for (size_t i = observed; i < count; i++) values[i] = std::move(found[i - observed + 1]);
        std::for_each(data(found[0]), data(found[0]) + size(found[0]), [](float x) { std::cout << x << " "; });
        std::cout << std::endl; // contract.json, "action": what turns these into an action
    }
}
