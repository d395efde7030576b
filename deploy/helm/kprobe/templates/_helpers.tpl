{{/* The port of an ADDRESS:PORT that may be empty. */}}
{{- define "kprobe.healthzPort" -}}
{{ regexFind "[0-9]+$" (.Values.healthz.bindAddress | default "10256") }}
{{- end }}

{{- define "kprobe.metricsPort" -}}
{{ regexFind "[0-9]+$" (.Values.metrics.bindAddress | default "10249") }}
{{- end }}

{{- define "kprobe.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Requests and limits: of the first row of sizing.yaml with room for .Values.sizing, or .Values.resources. Empty without a row. */}}
{{- define "kprobe.resources" -}}
{{- $found := dict -}}
{{- $wanted := .Values.sizing -}}
{{- if $wanted.services -}}
{{- range (.Files.Get "sizing.yaml" | fromYaml).rows -}}
{{- $fits := and (eq .mode $.Values.mode) (ge (int .services) (int $wanted.services)) (ge (int .endpoints) (int $wanted.endpoints)) -}}
{{- if and $fits (ge (int .changes) (int $wanted.changesPerSecond)) (not $found) -}}
{{- $found = dict "requests" (dict "cpu" .cpu "memory" .memory) "limits" (dict "memory" .limit) -}}
{{- end -}}
{{- end -}}
{{- else -}}
{{- $found = .Values.resources -}}
{{- end -}}
{{- with $found }}{{ toYaml . }}{{ end -}}
{{- end }}

{{/* Labels of a node that the chart itself asks for. */}}
{{- define "kprobe.nodeSelector" -}}
kubernetes.io/os: linux
{{- if .Values.canary }}
kprobe.io/proxy: kprobe
{{- end }}
{{- end }}

{{/* One or more ranges, with commas. */}}
{{- define "kprobe.clusterCIDR" -}}
{{- if kindIs "slice" .Values.clusterCIDR -}}
{{ join "," .Values.clusterCIDR }}
{{- else -}}
{{ .Values.clusterCIDR }}
{{- end -}}
{{- end }}

{{/* What both files of the configuration begin with. */}}
{{- define "kprobe.config.common" -}}
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: {{ .Values.mode | quote }}
clientConnection:
  kubeconfig: /var/lib/kprobe/kubeconfig.conf
{{- end }}

{{/* The daemon may not write settings of connection tracking: the init container does, with the privileges for it. */}}
{{- define "kprobe.config.daemon" -}}
{{- $defaults := dict -}}
{{- if eq .Values.mode "ipvs" }}{{ $_ := set $defaults "ipvs" (dict "scheduler" "rr" "strictARP" false) }}{{ end -}}
{{- if eq .Values.mode "iptables" }}{{ $_ := set $defaults "iptables" (dict "localhostNodePorts" true) }}{{ end -}}
{{- $own := include "kprobe.config.common" . | fromYaml -}}
{{- $_ := set $own "conntrack" (dict "maxPerCore" 0 "min" 0 "tcpEstablishedTimeout" "0s" "tcpCloseWaitTimeout" "0s") -}}
{{- if include "kprobe.clusterCIDR" . }}{{ $_ := set $own "clusterCIDR" "$(POD_CIDR)" }}{{ end -}}
{{- with .Values.metrics.bindAddress }}{{ $_ := set $own "metricsBindAddress" . }}{{ end -}}
{{- with .Values.healthz.bindAddress }}{{ $_ := set $own "healthzBindAddress" . }}{{ end -}}
{{- toYaml (mergeOverwrite $defaults (omit (deepCopy .Values.config) "conntrack") $own) -}}
{{- end }}

{{- define "kprobe.config.init" -}}
{{- toYaml (mergeOverwrite (deepCopy .Values.config) (include "kprobe.config.common" . | fromYaml)) -}}
{{- end }}
