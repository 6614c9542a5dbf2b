// One fenced write with Go's standard library: main ROLE PATH KEY JSON ORIGIN..., exit codes as write.sh.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

var (
	errNotApplied = errors.New("not applied")
	errUnknown    = errors.New("not known")
)

// Go's client follows redirects, unless told otherwise.
var client = &http.Client{
	Timeout:       10 * time.Second,
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// discover says who leads, and the token, by the first gateway that can tell.
func discover(role string, origins []string) (leader, token string) {
	for _, origin := range origins {
		answer, err := client.Get(origin + "/.well-known/fencegate/leader/" + role)
		if err != nil {
			continue
		}
		var found struct {
			Leader struct{ URL string }
			Token  json.Number // 64 bits: a float64 would round it
		}
		err = json.NewDecoder(answer.Body).Decode(&found)
		answer.Body.Close()
		if err == nil && answer.StatusCode == http.StatusOK && answer.Header.Get("X-Fencing-Region") != "" {
			return found.Leader.URL, found.Token.String()
		}
	}
	return "", ""
}

// write returns the target's status and body, or an error that is errNotApplied or errUnknown.
func write(role, path, key, body string, origins []string) (int, string, error) {
	failure, why, wait := errNotApplied, "nobody leads", time.Duration(0)
	for range [6]int{} {
		time.Sleep(wait)
		wait = time.Second + time.Duration(rand.Int63n(int64(time.Second)/2))
		leader, token := discover(role, origins)
		if !contains(origins, leader) { // Nothing else is ever sent to, whoever names it.
			if leader != "" {
				why = "not one of the origins given: " + leader
			}
			continue
		}
		request, err := http.NewRequest(http.MethodPost, leader+path, strings.NewReader(body))
		if err != nil {
			return 0, "", fmt.Errorf("%w: %v", errNotApplied, err)
		}
		request.Header.Set("X-Fencing-Token", token)
		request.Header.Set("Idempotency-Key", key)
		request.Header.Set("Content-Type", "application/json")
		// Go's transport sends a request with an Idempotency-Key again by itself, unseen, when a kept connection broke:
		// the second answer would hide that the first was lost. Without GetBody it can't.
		request.GetBody = nil
		answer, err := client.Do(request)
		if err != nil {
			failure, why = errUnknown, err.Error()
			continue
		}
		text, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		outcome, applied := answer.Header.Get("X-Fencing-Outcome"), answer.Header.Get("X-Fencing-Applied")
		switch {
		case err != nil:
			failure, why = errUnknown, err.Error()
			continue
		case outcome == "accepted":
			return answer.StatusCode, string(text), nil
		case outcome == "" || applied != "no": // Not the gateway's answer, or it does not know either.
			failure = errUnknown
		case answer.Header.Get("X-Fencing-Retry") == "never":
			return 0, "", fmt.Errorf("%w: %s", failure, text)
		}
		why = string(text)
		if after, err := strconv.Atoi(answer.Header.Get("Retry-After")); err == nil && after > 1 && after <= 15 {
			wait = time.Duration(after) * time.Second
		}
	}
	return 0, "", fmt.Errorf("%w: %s", failure, why)
}

func contains(origins []string, one string) bool {
	for _, origin := range origins {
		if origin == one {
			return true
		}
	}
	return false
}

func main() {
	status, body, err := write(os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		if errors.Is(err, errUnknown) {
			os.Exit(75)
		}
		os.Exit(1)
	}
	fmt.Println(body)
	if status >= 300 {
		os.Exit(1)
	}
}
