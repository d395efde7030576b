// Prints as JSON which series each alert of a file of alerting rules finds: firing RULES SERIES. SERIES is a JSON list of
// {"labels": {"__name__": …}, "values": […]}; values are 30 s apart, and the last one is of second 100000, when the rules are
// evaluated. `for` does not count: an expression is evaluated once.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"
)

const (
	nowS  = 100000
	stepS = 30
)

type given struct {
	Labels map[string]string `json:"labels"`
	Values []float64         `json:"values"`
}

func main() {
	found, err := run(os.Args[1], os.Args[2])
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(found)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(rules, series string) (map[string][]labels.Labels, error) {
	groups, errors := rulefmt.ParseFile(rules, false, model.UTF8Validation)
	if len(errors) > 0 {
		return nil, errors[0]
	}
	var all []given
	if err := json.Unmarshal([]byte(series), &all); err != nil {
		return nil, err
	}
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1000000, Timeout: 10 * time.Second})
	found := map[string][]labels.Labels{}
	for _, group := range groups.Groups {
		for _, rule := range group.Rules {
			query, err := engine.NewInstantQuery(context.Background(), source(all), nil, rule.Expr, time.Unix(nowS, 0))
			if err != nil {
				return nil, err
			}
			vector, err := query.Exec(context.Background()).Vector()
			if err != nil {
				return nil, fmt.Errorf("%s: %w", rule.Alert, err)
			}
			for _, sample := range vector {
				found[rule.Alert] = append(found[rule.Alert], sample.Metric)
			}
		}
	}
	return found, nil
}

func source(all []given) storage.Queryable {
	choose := func(_ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
		set := &seriesSet{at: -1}
		for _, each := range all {
			if matches(each, matchers) {
				set.all = append(set.all, promql.NewStorageSeries(seriesOf(each)))
			}
		}
		return set
	}
	return &storage.MockQueryable{MockQuerier: &storage.MockQuerier{SelectMockFunction: choose}}
}

type seriesSet struct {
	all []storage.Series
	at  int
}

func (s *seriesSet) Next() bool {
	s.at++
	return s.at < len(s.all)
}

func (s *seriesSet) At() storage.Series                { return s.all[s.at] }
func (s *seriesSet) Err() error                        { return nil }
func (s *seriesSet) Warnings() annotations.Annotations { return nil }

func matches(series given, matchers []*labels.Matcher) bool {
	for _, matcher := range matchers {
		if !matcher.Matches(series.Labels[matcher.Name]) {
			return false
		}
	}
	return true
}

func seriesOf(series given) promql.Series {
	var floats []promql.FPoint
	for at, value := range series.Values {
		floats = append(floats, promql.FPoint{T: int64(nowS-stepS*(len(series.Values)-1-at)) * 1000, F: value})
	}
	return promql.Series{Metric: labels.FromMap(series.Labels), Floats: floats}
}
