// Command definitions checks files of CustomResourceDefinitions as an API server would: structure, rules in CEL, and
// the estimated cost of every rule.
package main

import (
	"context"
	"fmt"
	"os"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

func main() {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	wrong := 0
	for _, file := range os.Args[1:] {
		text, err := os.ReadFile(file)
		if err != nil {
			fmt.Println(err)
			os.Exit(2)
		}
		given := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(text, given); err != nil {
			fmt.Printf("%s: %v\n", file, err)
			wrong++
			continue
		}
		scheme.Default(given)
		inner := &apiextensions.CustomResourceDefinition{}
		if err := scheme.Convert(given, inner, nil); err != nil {
			fmt.Printf("%s: %v\n", file, err)
			os.Exit(2)
		}
		inner.Status.StoredVersions = []string{inner.Spec.Versions[0].Name}
		for _, problem := range validation.ValidateCustomResourceDefinition(context.Background(), inner) {
			fmt.Printf("%s: %v\n", file, problem)
			wrong++
		}
	}
	if wrong > 0 {
		os.Exit(1)
	}
	fmt.Printf("%d definitions are accepted\n", len(os.Args)-1)
}
