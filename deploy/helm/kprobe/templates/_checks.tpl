{{/* Fails with all errors at once. Types and unknown names are the work of values.schema.json. */}}
{{- define "kprobe.check" -}}
{{- $errors := concat (include "kprobe.errors.cluster" . | fromJsonArray) (include "kprobe.errors.config" . | fromJsonArray) -}}
{{- $errors = concat $errors (include "kprobe.errors.addresses" . | fromJsonArray) -}}
{{- if $errors }}{{ fail (printf "\n\n%s\n" (join "\n" $errors)) }}{{ end -}}
{{- end }}

{{- define "kprobe.errors.cluster" -}}
{{- $errors := list -}}
{{- $cidrs := include "kprobe.clusterCIDR" . -}}
{{- range $name, $text := dict "apiServer" .Values.apiServer "clusterCIDR" $cidrs "image" (toJson .Values.image) "config" (toJson .Values.config) -}}
{{- range regexFindAll "REPLACE_ME\\w*" $text -1 | uniq -}}
{{- $errors = append $errors (printf "%s: %s is a placeholder; replace it with the real value" $name .) -}}
{{- end -}}
{{- end -}}
{{- if not (or (contains "REPLACE_ME" .Values.apiServer) (regexMatch "^https?://[^/]+/?$" .Values.apiServer)) -}}
{{- $errors = append $errors (printf "apiServer: %q is not a URL; write it like https://192.0.2.1:6443" .Values.apiServer) -}}
{{- end -}}
{{- if and (not $cidrs) (eq (.Values.config.detectLocalMode | default "ClusterCIDR") "ClusterCIDR") -}}
{{- $errors = append $errors "clusterCIDR: empty; kprobe needs it to distinguish pods, unless config.detectLocalMode is another than ClusterCIDR" -}}
{{- end -}}
{{- range splitList "," $cidrs -}}
{{- if not (or (eq . "") (contains "REPLACE_ME" .) (regexMatch "^[0-9a-fA-F.:]+/[0-9]+$" .)) -}}
{{- $errors = append $errors (printf "clusterCIDR: %q is not a range; write it like 10.244.0.0/16" .) -}}
{{- end -}}
{{- end -}}
{{- toJson $errors -}}
{{- end }}

{{/* Fields of the configuration that have a value of their own. An empty one says nothing: whole files of kube-proxy have them. */}}
{{- define "kprobe.errors.config" -}}
{{- $errors := list -}}
{{- $own := dict "mode" "mode" "clusterCIDR" "clusterCIDR" "metricsBindAddress" "metrics.bindAddress" -}}
{{- $own = merge $own (dict "healthzBindAddress" "healthz.bindAddress" "stateDir" "savedState" "nodeCondition" "nodeCondition") -}}
{{- range $field, $value := $own -}}
{{- if get $.Values.config $field -}}
{{- $errors = append $errors (printf "config.%s: set the value %s instead" $field $value) -}}
{{- end -}}
{{- end -}}
{{- if dig "clientConnection" "kubeconfig" "" .Values.config -}}
{{- $errors = append $errors "config.clientConnection.kubeconfig: leave it out; the chart writes a kubeconfig for the ServiceAccount" -}}
{{- end -}}
{{- if .Values.config.hostnameOverride -}}
{{- $errors = append $errors "config.hostnameOverride: leave it out; every pod gets the name of its node" -}}
{{- end -}}
{{- toJson $errors -}}
{{- end }}

{{- define "kprobe.errors.addresses" -}}
{{- $errors := list -}}
{{- range $name, $text := dict "healthz.bindAddress" .Values.healthz.bindAddress "metrics.bindAddress" .Values.metrics.bindAddress -}}
{{- if not (regexMatch "^$|^[0-9.]+:[0-9]+$|^\\[[0-9a-fA-F:]+\\]:[0-9]+$" $text) -}}
{{- $errors = append $errors (printf "%s: %q is not ADDRESS:PORT; write it like 0.0.0.0:10256 or [::]:10256" $name $text) -}}
{{- end -}}
{{- end -}}
{{- $loopback := "^127\\.|^\\[::1\\]" -}}
{{- if regexMatch $loopback .Values.healthz.bindAddress -}}
{{- $errors = append $errors (printf "healthz.bindAddress: kubelet does not reach %s" .Values.healthz.bindAddress) -}}
{{- end -}}
{{- if and .Values.metrics.podMonitor.enabled (or (not .Values.metrics.bindAddress) (regexMatch $loopback .Values.metrics.bindAddress)) -}}
{{- $errors = append $errors "metrics.podMonitor: Prometheus does not reach 127.0.0.1 of the node; set metrics.bindAddress, such as 0.0.0.0:10249" -}}
{{- end -}}
{{- toJson $errors -}}
{{- end }}
