/** What kube-proxy leaves in iptables for two Services, one with two endpoints less than the other, and affinity. */
export const KUBE_PROXY = `*mangle
:KUBE-PROXY-CANARY - [0:0]
COMMIT
*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-PROXY-CANARY - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SERVICES - [0:0]
-A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A INPUT -m comment --comment "kubernetes health check service ports" -j KUBE-NODEPORTS
-A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-A INPUT -j KUBE-FIREWALL
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -j KUBE-FIREWALL
-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment "block incoming localnet connections" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
-A KUBE-FORWARD -m conntrack --ctstate INVALID -m nfacct --nfacct-name ct_state_invalid_dropped_pkts -j DROP
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A KUBE-SERVICES -d 10.96.0.9/32 -p udp -m comment --comment "ns/none:p has no endpoints" -m udp --dport 53 -j REJECT --reject-with icmp-port-unreachable
-A KUBE-SERVICES -d 10.96.0.8/32 -p sctp -m comment --comment "ns/none:s has no local endpoints" -m sctp --dport 53 -j DROP
COMMIT
*nat
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-SEP-2222222222222222 - [0:0]
:KUBE-SEP-3333333333333333 - [0:0]
:KUBE-SEP-4444444444444444 - [0:0]
:KUBE-SEP-5555555555555555 - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-2222222222222222 - [0:0]
:KUBE-SVC-3333333333333333 - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
-A KUBE-SEP-2222222222222222 -s 10.180.0.1/32 -m comment --comment ns1/svc1:p80 -j KUBE-MARK-MASQ
-A KUBE-SEP-2222222222222222 -p tcp -m comment --comment ns1/svc1:p80 -m tcp -j DNAT --to-destination 10.180.0.1:80
-A KUBE-SEP-3333333333333333 -s 10.180.0.2/32 -m comment --comment ns1/svc1:p80 -j KUBE-MARK-MASQ
-A KUBE-SEP-3333333333333333 -p tcp -m comment --comment ns1/svc1:p80 -m tcp -j DNAT --to-destination 10.180.0.2:80
-A KUBE-SEP-4444444444444444 -s 10.180.0.3/32 -m comment --comment ns1/svc1:p80 -j KUBE-MARK-MASQ
-A KUBE-SEP-4444444444444444 -p tcp -m comment --comment ns1/svc1:p80 -m tcp -j DNAT --to-destination 10.180.0.3:80
-A KUBE-SEP-5555555555555555 -s 10.180.0.4/32 -m comment --comment ns1/svc2:p80 -j KUBE-MARK-MASQ
-A KUBE-SEP-5555555555555555 -p udp -m comment --comment ns1/svc2:p80 -m recent --name KUBE-SEP-5555555555555555 --set -m udp -j DNAT --to-destination 10.180.0.4:80
-A KUBE-SERVICES -d 172.30.0.41/32 -p tcp -m comment --comment "ns1/svc1:p80 cluster IP" -m tcp --dport 80 -j KUBE-SVC-2222222222222222
-A KUBE-SERVICES -d 172.30.0.42/32 -p udp -m comment --comment "ns1/svc2:p80 cluster IP" -m udp --dport 80 -j KUBE-SVC-3333333333333333
-A KUBE-SERVICES ! -d 127.0.0.0/8 -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-SVC-2222222222222222 ! -s 10.0.0.0/8 -d 172.30.0.41/32 -p tcp -m comment --comment "ns1/svc1:p80 cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ
-A KUBE-SVC-2222222222222222 -m comment --comment "ns1/svc1:p80 -> 10.180.0.1:80" -m statistic --mode random --probability 0.3333333333 -j KUBE-SEP-2222222222222222
-A KUBE-SVC-2222222222222222 -m comment --comment "ns1/svc1:p80 -> 10.180.0.2:80" -m statistic --mode random --probability 0.5000000000 -j KUBE-SEP-3333333333333333
-A KUBE-SVC-2222222222222222 -m comment --comment "ns1/svc1:p80 -> 10.180.0.3:80" -j KUBE-SEP-4444444444444444
-A KUBE-SVC-3333333333333333 -m comment --comment "ns1/svc2:p80 -> 10.180.0.4:80" -m recent --name KUBE-SEP-5555555555555555 --rcheck --seconds 10800 --reap -j KUBE-SEP-5555555555555555
-A KUBE-SVC-3333333333333333 -m comment --comment "ns1/svc2:p80 -> 10.180.0.4:80" -j KUBE-SEP-5555555555555555
COMMIT
`

/** What a container engine, two network plugins and an administrator leave there, in their manner. */
export const FOREIGN = `*raw
-A PREROUTING -m rpfilter --validmark --invert -j DROP
-A PREROUTING -j CT --notrack
COMMIT
*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:DOCKER - [0:0]
:DOCKER-ISOLATION-STAGE-1 - [0:0]
:DOCKER-USER - [0:0]
:cali-INPUT - [0:0]
:cali-from-wl-dispatch - [0:0]
:FLANNEL-FWD - [0:0]
-A INPUT -m comment --comment "cali:Cz_u1IQiXIMmKD4c" -j cali-INPUT
-A INPUT -i lo -j ACCEPT
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-ISOLATION-STAGE-1
-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -o docker0 -j DOCKER
-A FORWARD -i docker0 ! -o docker0 -j ACCEPT
-A FORWARD -i docker0 -o docker0 -j ACCEPT
-A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD
-A DOCKER -d 172.17.0.2/32 ! -i docker0 -o docker0 -p tcp -m tcp --dport 80 -j ACCEPT
-A DOCKER-ISOLATION-STAGE-1 -j RETURN
-A DOCKER-USER -m limit --limit 3/min -j LOG --log-prefix "not here: "
-A DOCKER-USER -j RETURN
-A FLANNEL-FWD -s 10.244.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT
-A FLANNEL-FWD -d 10.244.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT
-A cali-INPUT -i cali+ -m comment --comment "cali:FewJpBykm9iJ-YNH" -g cali-from-wl-dispatch
-A cali-INPUT -p udp -m comment --comment "cali:w7ud0UgQSEi_zKuQ" -m multiport --dports 4789,8472 -j ACCEPT
-A cali-INPUT -m comment --comment "cali:IIsr3NQyzpIH3yFq" -m mark --mark 0x10000/0x10000 -j ACCEPT
-A cali-INPUT -m comment --comment "cali:i7okJZpS8VxaJB3n" -j MARK --set-xmark 0x0/0xf0000
-A cali-INPUT -m set ! --match-set cali40all-ipam-pools src -j RETURN
-A cali-INPUT -p tcp -m tcp --syn -j RETURN
-A cali-from-wl-dispatch -j REJECT --reject-with icmp-admin-prohibited
COMMIT
*nat
:DOCKER - [0:0]
:FLANNEL-POSTRTG - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j DOCKER
-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG
-A DOCKER -i docker0 -j RETURN
-A DOCKER ! -i docker0 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 172.17.0.2:80
-A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.244.0.0/16 ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
COMMIT
`
