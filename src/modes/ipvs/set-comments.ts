import type { SetStem } from './set-names.ts'

/** What kube-proxy's rules about a set are commented with; by stem, the same for both families. */
export const SET_COMMENTS: Readonly<Record<SetStem, string>> = {
  'LOOP-BACK': 'Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose',
  'CLUSTER-IP': 'Kubernetes service cluster ip + port for masquerade purpose',
  'EXTERNAL-IP': 'Kubernetes service external ip + port for masquerade and filter purpose',
  'EXTERNAL-IP-LOCAL': 'Kubernetes service external ip + port with externalTrafficPolicy=local',
  'LOAD-BALANCER': 'Kubernetes service lb portal',
  'LOAD-BALANCER-LOCAL': 'Kubernetes service load balancer ip + port with externalTrafficPolicy=local',
  'LOAD-BALANCER-FW': 'Kubernetes service load balancer ip + port for load balancer with sourceRange',
  'LOAD-BALANCER-SOURCE-IP':
    'Kubernetes service load balancer ip + port + source IP for packet filter purpose',
  'LOAD-BALANCER-SOURCE-CIDR':
    'Kubernetes service load balancer ip + port + source cidr for packet filter purpose',
  'NODE-PORT-TCP': 'Kubernetes nodeport TCP port for masquerade purpose',
  'NODE-PORT-LOCAL-TCP': 'Kubernetes nodeport TCP port with externalTrafficPolicy=local',
  'NODE-PORT-UDP': 'Kubernetes nodeport UDP port for masquerade purpose',
  'NODE-PORT-LOCAL-UDP': 'Kubernetes nodeport UDP port with externalTrafficPolicy=local',
  'NODE-PORT-SCTP-HASH': "Kubernetes nodeport SCTP port for masquerade purpose with type 'hash ip:port'",
  'NODE-PORT-LOCAL-SCTP-HASH':
    "Kubernetes nodeport SCTP port with externalTrafficPolicy=local with type 'hash ip:port'",
  'HEALTH-CHECK-NODE-PORT': 'Kubernetes health check node port',
  'IPVS-IPS': 'Addresses on the ipvs interface',
}
