package model_test

func init() { fixtures = append(fixtures, "qwen4exp", "qwen4exp-q4k") }
