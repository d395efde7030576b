// Checks a file of alerting rules as `promtool check rules` does, which takes many times as long to build.
package main

import (
	"fmt"
	"os"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
)

func main() {
	_, errors := rulefmt.ParseFile(os.Args[1], false, model.UTF8Validation)
	for _, err := range errors {
		fmt.Println(err)
	}
	if len(errors) > 0 {
		os.Exit(1)
	}
}
